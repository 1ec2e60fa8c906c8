"""What is computed (form and reveal) and how (protocol), and the record step."""
