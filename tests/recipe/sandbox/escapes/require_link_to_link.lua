-- expect: a link that leads out of it
return require "link_to_link" -- here
