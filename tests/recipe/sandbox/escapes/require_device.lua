-- expect: found no module
return require "zero" -- here
