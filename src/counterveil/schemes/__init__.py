"""What is computed (form of the question, and reveal), how (protocol), and how a record is fetched."""
