assert(not pcall(require, {}) and not pcall(require, nil) and not pcall(require))
return "contained"
