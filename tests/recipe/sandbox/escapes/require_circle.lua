-- expect: require goes in a circle
return require "circle_a"
