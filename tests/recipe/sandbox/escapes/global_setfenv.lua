assert(setfenv == nil and rawget(_G, "setfenv") == nil)
return "contained"
