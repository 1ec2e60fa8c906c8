"""The link: servers of a deployment, and a dealer, that tell each other what a joint answer needs."""
