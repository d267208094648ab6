local s = "_ENV" .. [[ _ENV ]] -- _ENV
assert(#s == 10)
return "contained"
