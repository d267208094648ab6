-- expect: a link that leads out of it
return require "link" -- here
