assert(loadstring == nil and rawget(_G, "loadstring") == nil)
return "contained"
