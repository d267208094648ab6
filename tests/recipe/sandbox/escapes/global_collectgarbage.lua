assert(collectgarbage == nil and rawget(_G, "collectgarbage") == nil)
return "contained"
