-- expect: _ENV is not allowed
-- a comment ends here_ENV.x = 1
