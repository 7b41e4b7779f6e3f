"""What peers do wrong, by mistake or on purpose: each costs that peer, is logged once, and nobody else notices."""
