"""`sluiceway doctor`: facts to findings, and how facts are found."""
