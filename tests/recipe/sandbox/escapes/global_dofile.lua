assert(dofile == nil and rawget(_G, "dofile") == nil)
return "contained"
