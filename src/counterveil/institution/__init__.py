"""SECRET to the institution: its accepted rows, and how they become a bundle."""
