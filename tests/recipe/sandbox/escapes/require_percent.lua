-- expect: require cannot read
return require "%2e%2e/secret" -- here
