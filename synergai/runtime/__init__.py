"""Process plumbing: settings, service lifecycle, systemd, paths, files, plug-ins."""
