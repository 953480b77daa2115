"""`specbench verify`: is a run what `specbench run` wrote, and may it enter the leaderboard?"""
