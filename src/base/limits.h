/* base/limits.h - the one table of limits on foreign input. Every bound that a file, a request or a template meets is
 * here, so that it can be read, tested at its edge, and changed in one place. */
#pragma once

/* model files */
#define LIMIT_GGUF_KV              65536u /* metadata entries */
#define LIMIT_GGUF_TENSORS         65536u
#define LIMIT_GGUF_KEY_BYTES       65535u
#define LIMIT_GGUF_STRING_BYTES    (64u << 20)
#define LIMIT_GGUF_ARRAY           (16u << 20)  /* elements of one array */
#define LIMIT_GGUF_ALIGNMENT       65536u       /* general.alignment, bytes */
#define LIMIT_SAFETENSORS_HEADER   (100u << 20) /* JSON at the start of a shard */
#define LIMIT_SAFETENSORS_TENSORS  (1u << 20)   /* of all shards together */
#define LIMIT_SHARDS               200u         /* files of one model */
#define LIMIT_CONFIG_BYTES         (16u << 20)  /* config.json and generation_config.json */
#define LIMIT_INDEX_BYTES          (64u << 20)  /* model.safetensors.index.json */
#define LIMIT_N_LAYERS             1024u
#define LIMIT_N_HEADS              1024u
#define LIMIT_HEAD_DIM             1024u
#define LIMIT_HIDDEN               (1u << 17)
#define LIMIT_FFN                  (1u << 20)
#define LIMIT_VOCAB                (1u << 21)
#define LIMIT_CONTEXT              (1u << 24)   /* tokens */
#define LIMIT_TOKEN_BYTES          (1u << 16)   /* one vocabulary entry */
#define LIMIT_TEXT_BYTES           (256u << 20) /* one text to tokenise */
#define LIMIT_KEPT_TEXTS           64u          /* tokenised texts kept for the case that they grow: their number, */
#define LIMIT_KEPT_TEXT_BYTES      (64u << 20)  /* and bytes with their ids */
#define LIMIT_KEPT_SPELLING_BYTES  (8u << 20)   /* first spellings of tools and arguments */
#define LIMIT_ANSWER_FILE_BYTES    (96u << 20)  /* of both, before their file is written anew */
#define LIMIT_KEPT_ANSWER_BYTES    (32u << 20)  /* sequences and answers kept for the case that they come back */
#define LIMIT_MERGES               (4u << 20)
#define LIMIT_SEARCHED_TOKEN_BYTES 1024u        /* one added or unigram token: looked for at every place of a text */
#define LIMIT_TOKENIZER_BYTES      (256u << 20) /* tokenizer.json */

/* hubs of models */
#define LIMIT_HUB_ANSWER_BYTES (64u << 20) /* one page of a hub's API */
#define LIMIT_HUB_PAGES        200u        /* of one list */
#define LIMIT_HUB_FILES        20000u      /* of one model */

/* requests */
#define LIMIT_BODY_BYTES       (32u << 20)
#define LIMIT_JSON_DEPTH       128u
#define LIMIT_JSON_TREE_BYTES  (64u << 20) /* that the values of one body take, beside the bytes of its texts */
#define LIMIT_MESSAGES         65536u
#define LIMIT_TOOLS            1024u
#define LIMIT_TOOL_NAME_BYTES  256u
#define LIMIT_TOOL_HEAD_BYTES  65536u /* held back while it is open whether a text is a call */
#define LIMIT_STOP_STRINGS     64u
#define LIMIT_STOP_BYTES       4096u
#define LIMIT_LOGIT_BIAS       4096u
#define LIMIT_TOP_LOGPROBS     20u
#define LIMIT_STOP_TOKENS      1024u
#define LIMIT_RESPONSE_FIELDS  64u
#define LIMIT_BAD_WORDS        1024u
#define LIMIT_DRY_BREAKERS     64u
#define LIMIT_WORD_BYTES       256u /* a bad word, a sequence breaker, a biased text */
#define LIMIT_SALT_BYTES       256u
#define LIMIT_CACHE_NAME_CHARS 128u        /* bytes of a cache_name */
#define LIMIT_SERVED_MODELS    1024u       /* of one server */
#define LIMIT_ADAPTERS         1024u       /* of one model */
#define LIMIT_CACHE_NAMES      4096u       /* a quarter of them for one tenant, as of: */
#define LIMIT_CACHE_NAME_BYTES (64u << 20) /* tokens of their texts */
#define LIMIT_CACHE_ENDS       64u         /* texts of a name that are told apart */
#define LIMIT_SAVED_NAMES      64u         /* of one tenant */
#define LIMIT_N_CHOICES        16u
#define LIMIT_PROMPTS          2048u      /* prompts in one completion or embedding request */
#define LIMIT_FIM_BYTES        (4u << 20) /* text around a gap to fill: it is tokenised by an io thread */
#define LIMIT_ITEM_REFERENCES  1024u      /* in the input of a response: each reads an answer */
#define LIMIT_LABELS           1024u      /* of one classification */
#define LIMIT_LABEL_TOKENS     4096u      /* in all of them */
#define LIMIT_HEADER_BYTES     32768u

/* templates (F12) */
#define LIMIT_TEMPLATE_BYTES     (1u << 20)
#define LIMIT_TEMPLATE_STEPS     1000000u /* of a rendering, beyond those for its variables: */
#define LIMIT_TEMPLATE_PER_VALUE 200u     /* each value in them, and a step for each byte of text */
#define LIMIT_TEMPLATE_DEPTH     200u
#define LIMIT_TEMPLATE_FRAMES    2000u /* nodes of a template being evaluated inside each other */
#define LIMIT_TEMPLATE_OUTPUT    (64u << 20)
#define LIMIT_TEMPLATE_WIDTH     4096u /* padding and digits that one format may ask for */
#define LIMIT_TEMPLATE_MEMORY    (256u << 20)

/* server */
#define LIMIT_API_KEYS               4096u
#define LIMIT_TENANTS                8192u /* that key files have named since the start */
#define LIMIT_ORIGINS                64u   /* of --allow-origin */
#define LIMIT_PUBLIC_PREFIXES        256u  /* prompts of --shared-prefix */
#define LIMIT_LISTENERS              16u   /* addresses that one server listens on */
#define LIMIT_CONNECTIONS            4096u /* and what the process may open, less: */
#define LIMIT_RESERVED_FILES         32u   /* kept for models, caches, logs (F46), and: */
#define LIMIT_DOOR_GUESTS            64u   /* at the door: new clients, and those that ask /health */
#define LIMIT_STORED_RESPONSES       1024u /* answers of /v1/responses kept for later */
#define LIMIT_STORED_RESPONSES_BYTES (64u << 20)
#define LIMIT_CPU_THREADS            64u

/* files of our own */
#define LIMIT_PATH_BYTES        4096u /* a path, its end included */
#define LIMIT_STORE_PAGE_TOKENS 1024u
#define LIMIT_STORE_PAGE_BYTES  (1ull << 30)
#define LIMIT_STORE_NAME_BYTES  4096u
#define LIMIT_STORE_TABLE_BYTES (64ull << 20) /* records of one segment */
#define LIMIT_STORE_SPACES      100000u       /* namespaces held at once, by requests and copies under way */
#define LIMIT_STORE_SEGMENTS    1000000u
