"""PUBLIC: the features of a person and their levels. PRIVATE to the applicant: `preferences` and `costs`."""
