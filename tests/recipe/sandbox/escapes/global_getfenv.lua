assert(getfenv == nil and rawget(_G, "getfenv") == nil)
return "contained"
