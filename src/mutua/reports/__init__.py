"""Tables, pictures and pages made from finished runs."""
