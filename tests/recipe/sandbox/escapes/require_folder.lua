-- expect: found no module
return require "folder" -- here
