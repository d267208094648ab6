-- expect: require cannot read
return require "helper\n" -- here
