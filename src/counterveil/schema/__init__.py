"""PUBLIC: the features of a person and their levels. And the applicant's preferences, which are not public."""
