"""What is deployed with the product."""
