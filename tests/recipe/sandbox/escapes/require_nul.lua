-- expect: require cannot read
return require "helper\0../secret" -- here
