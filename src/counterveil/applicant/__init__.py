"""The applicant's side: one conversation with all servers, and what the answer means."""
