"""Tables and figures of papers, one PAPER/ITEM.yaml each: `mutua reproduce PAPER/ITEM` runs one."""
