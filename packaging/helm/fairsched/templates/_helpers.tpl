{{- define "fairsched.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "fairsched.selector" -}}
app.kubernetes.io/name: fairsched
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "fairsched.labels" -}}
{{ include "fairsched.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "fairsched.account" -}}
{{- .Values.serviceAccount.name | default (include "fairsched.name" .) -}}
{{- end -}}

{{- /* Whether anything of the agent asks the API server. */ -}}
{{- define "fairsched.asks" -}}
{{- if or (dig "escalation" "enabled" false .Values.config) (dig "kubernetes" "watch_pods" false .Values.config) -}}
yes
{{- end -}}
{{- end -}}

{{- /* The exporter's port; empty where there is no exporter. */ -}}
{{- define "fairsched.port" -}}
{{- with dig "metrics" "listen" "" .Values.config -}}{{- . | splitList ":" | last -}}{{- end -}}
{{- end -}}
