# openapi-schemas.sed - a JSON file as lines of a C string.
s/[\\"]/\\&/g
s/^/"/
s/$/\\n"/
