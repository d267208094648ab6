-- expect: the sandbox has no .os.
os.execute("touch ../touched") -- here
