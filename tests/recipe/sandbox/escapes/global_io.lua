assert(io == nil and _G.io == nil and rawget(_G, "io") == nil)
return "contained"
