"""Process infrastructure: settings, service lifecycle, systemd, paths, files, plug-ins."""
