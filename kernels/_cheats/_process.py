"""What cheats find out about the processes around them."""

import os
from pathlib import Path


def judge():
    """The process id of the supervisor's parent."""
    # "pid (name) state ppid ...": the name may hold spaces and parentheses.
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])


def sockets():
    """The descriptors of this process that are sockets."""
    links = {int(link.name): link for link in Path("/proc/self/fd").iterdir()}
    return [number for number, link in links.items() if link.is_symlink() and str(link.readlink())[:7] == "socket:"]
