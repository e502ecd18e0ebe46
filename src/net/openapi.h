/* openapi.h - /openapi.json: the API in OpenAPI 3.1, made of the route table and openapi-schemas.json. */
#ifndef KL_NET_OPENAPI_H
#define KL_NET_OPENAPI_H

#include <jansson.h>

/* All of it, to be freed with json_decref. NULL: out of memory. */
json_t *kl__openapi(void);

/* What openapi-schemas.json says, for the test that compares it with the table; likewise. */
json_t *kl__openapi_schemas(void);

#endif
