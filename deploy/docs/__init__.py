"""The documentation site: its generated pages, and how MkDocs gets them."""
