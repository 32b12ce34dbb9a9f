"""A disk that can be full and read-only."""

import os
import resource
import subprocess

SIZE = "24m"


class Disk:
    """A folder that can be full and read-only: a small tmpfs for root, otherwise a limit and permissions."""

    def __init__(self, folder):
        self.folder, self.filler = folder, folder / "filler"
        mounted = os.geteuid() == 0 and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder], capture_output=True, check=False
        )
        self.is_mounted = bool(mounted) and mounted.returncode == 0
        self.can_be_read_only = self.is_mounted or os.geteuid() != 0
        if self.is_mounted:
            self.note = f"full disk and read-only disk: a tmpfs of {SIZE}"
        elif os.geteuid() == 0:
            self.note = "full disk: a file size limit, because no tmpfs can be mounted; read-only disk: not done, root writes anyway"
        else:
            self.note = "full disk: a file size limit; read-only disk: a folder without write permission"

    def fill(self, pid, data):
        if not self.is_mounted:
            largest = max((file.stat().st_size for file in data.rglob("*") if file.is_file()), default=0)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (min(largest, 4096), resource.RLIM_INFINITY))
            return
        with open(self.filler, "wb", buffering=0) as file:
            size = 1 << 20
            while size:
                try:
                    file.write(bytes(size))
                except OSError:
                    size //= 2

    def free(self, pid):
        if self.is_mounted:
            self.filler.unlink()
        else:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def set_read_only(self, data):
        """Returns false if the disk cannot be made read-only here."""
        if self.is_mounted:
            done = subprocess.run(["mount", "-o", "remount,ro", self.folder], capture_output=True, check=False)
            return done.returncode == 0
        if not self.can_be_read_only:
            return False
        self.permit(data, 0o555, 0o444)
        return True

    def set_writable(self, data):
        if self.is_mounted:
            subprocess.run(["mount", "-o", "remount,rw", self.folder], check=True)
        else:
            self.permit(data, 0o755, 0o644)

    def permit(self, data, folders, files):
        os.chmod(data, 0o755)
        for path in [*data.rglob("*"), data]:
            if not path.is_symlink():
                path.chmod(folders if path.is_dir() else files)

    def remove(self):
        if self.is_mounted:
            subprocess.run(["umount", "--lazy", self.folder], check=False)
