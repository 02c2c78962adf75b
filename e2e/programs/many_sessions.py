"""Opens /srv/dns/query as often as asked and says how far it came and why not further."""

import errno
import os
import resource
import sys

wanted = int(sys.argv[1])
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
opened, reasons = [], {}
for _ in range(wanted):
    try:
        opened.append(os.open("/srv/dns/query", os.O_RDWR))
    except OSError as error:
        name = errno.errorcode[error.errno]
        reasons[name] = reasons.get(name, 0) + 1
print("opened", len(opened), "of", wanted, reasons)
