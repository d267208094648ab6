assert(warn == nil and rawget(_G, "warn") == nil)
return "contained"
