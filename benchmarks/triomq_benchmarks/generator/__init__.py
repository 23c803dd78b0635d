"""Load generators and the engines that run them."""
