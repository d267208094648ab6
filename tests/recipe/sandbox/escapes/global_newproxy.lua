assert(newproxy == nil and rawget(_G, "newproxy") == nil)
return "contained"
