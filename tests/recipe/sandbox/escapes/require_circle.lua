-- expect: circular require
return require "circle_a"
