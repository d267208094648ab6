-- expect: a recipe has no .os.
os.execute("touch ../touched") -- here
