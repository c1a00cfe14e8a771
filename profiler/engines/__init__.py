"""Commands on engines of the model directory."""
