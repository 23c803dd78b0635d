"""How far consumer groups have consumed and delay levels have been delivered, and when operators have reset offsets."""
