"""Every bound of the format, with its unit, in one place."""

MAX_DEPTH = 16  # arrays and maps inside one another, the outermost counted
MAX_ENVELOPE_BYTES = 64 * 1024  # a receipt is about 1 KiB; COSE Receipts in the unprotected header may add some
MAX_HEADER_BYTES = 2 * 1024  # the protected header; the longest name takes half of it
MAX_PAYLOAD_BYTES = 32 * 1024
MAX_SETTINGS_BYTES = 64 * 1024
MAX_DISCLOSURE_BYTES = 64 * 1024 * 1024  # holds the prompt and the ids
MAX_TRUST_FILE_BYTES = 1024 * 1024
MAX_UINT = 2**63 - 1  # every unsigned field; SQLite and the other languages' signed 64-bit integers hold it too
MAX_TOKEN_ID = 2**32 - 1
MAX_TOKENS = 2**31 - 1
MAX_SEED = 2**32 - 2  # 2^32 - 1 means "draw one" to llama.cpp
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_BYTES = 1024
MAX_STOP_IDS = 256
MAX_LOGIT_BIASES = 1024
MAX_NAME_CHARS = 256
MAX_SOURCES = 64
MAX_RANKS = 64
MAX_GRANT_BYTES = 4 * 1024  # the whole chain; as text it fits into one HTTP header
MAX_GRANT_BLOCKS = 8
MAX_CAVEAT_ITEMS = 64
MAX_REVOCATION_FILE_BYTES = 16 * 1024 * 1024
