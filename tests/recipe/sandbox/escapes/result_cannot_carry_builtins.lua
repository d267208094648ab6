-- expect: a built-in function of Lua cannot be part of a recipe
return { run = require }
