"""The applicant's side: one conversation with all servers, and an explanation of the answer."""
