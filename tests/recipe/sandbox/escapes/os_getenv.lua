-- expect: attempt to index a nil value .global .os.
return os.getenv("FVLM_TEST_SECRET") -- here
